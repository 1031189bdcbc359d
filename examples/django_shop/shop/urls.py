"""The pages of the shop."""

import json

from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from shop.models import Order


@csrf_exempt
def order(request: HttpRequest) -> HttpResponse:
    """Place an order."""
    Order.objects.create(data=json.loads(request.body))
    return HttpResponse(status=201)


urlpatterns = [path("orders", order)]
