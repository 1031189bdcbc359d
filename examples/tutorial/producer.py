"""Customers who place orders, and repeat a request without an answer."""

import sys

from shop import place

ORDERS = 400


def main(orders: int) -> None:
    """Place orders; every fifth answer is lost, and the customer repeats the request."""
    for number in range(orders):
        order = f"request-{number}", f"customer-{number % 20}", 1 + number % 9
        place(*order)
        if number % 5 == 0:
            place(*order)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ORDERS)
