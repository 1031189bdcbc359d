"""The tables of the shop."""

from django.db import models


class Order(models.Model):
    """An order, which is an event of the feed."""

    data = models.JSONField()


class Invoice(models.Model):
    """An invoice for an order."""

    customer = models.TextField()
    amount = models.FloatField()
