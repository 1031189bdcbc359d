"""What the tests stand on: real databases, a real web server, and real peers."""
