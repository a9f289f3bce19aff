"""Programs that use the server as its users' do; tests/test_clients.py runs them."""
