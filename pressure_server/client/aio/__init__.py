"""The asyncio clients."""
