"""The HTTP listener, with aiohttp: health checks, metrics, and the console for operators."""
