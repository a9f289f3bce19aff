"""What goes back: messages that clients did not receive, and reservations until they are acknowledged."""
