"""Append the readings of a thermometer to a log, in the background."""

from zeroeventhub import Appender, Client, NewEvent

client = Client("http://127.0.0.1:8000/events")
with Appender(client, producer="cellar") as appender:
    for number in range(1000):
        celsius = {"celsius": 12 + number % 5}
        appender.append(NewEvent("measured", celsius, key="cellar", id=f"cellar-{number}"))
print(f"The log has {client.producer_sequence('cellar')} batches.")
