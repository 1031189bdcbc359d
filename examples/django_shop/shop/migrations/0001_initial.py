"""Create the tables of the shop."""

from django.db import migrations, models


def key() -> models.BigAutoField:
    """Make the key that Django gives a table."""
    return models.BigAutoField("ID", auto_created=True, primary_key=True, serialize=False)


class Migration(migrations.Migration):
    """Create the tables of the shop."""

    initial = True
    operations = (
        migrations.CreateModel("Order", [("id", key()), ("data", models.JSONField())]),
        migrations.CreateModel(
            "Invoice",
            [("id", key()), ("customer", models.TextField()), ("amount", models.FloatField())],
        ),
    )
