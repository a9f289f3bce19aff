"""What breaks: backends, servers, connections; and what nobody may lose."""
