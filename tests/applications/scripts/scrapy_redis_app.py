"""scrapy-redis: `scrapy runspider scrapy_redis_app.py` runs the worker, `put WORD …` puts pages to crawl."""

import json
import sys

import redis
from scrapy import Request
from scrapy_redis.spiders import RedisSpider
from work import PORT, work


class Pages(RedisSpider):
    """Crawl pages. The page `links:a,b` links to the pages `a` and `b`."""

    name = "pages"
    custom_settings = {  # noqa: RUF012 - the way of Scrapy
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_QUEUE_CLASS": "scrapy_redis.queue.FifoQueue",
        "SCHEDULER_PERSIST": True,
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "REDIS_URL": f"redis://127.0.0.1:{PORT}",
        "CONCURRENT_REQUESTS": 1,
    }

    def parse(self, response):
        work(response.text)
        if response.text.startswith("links:"):
            for page in response.text.removeprefix("links:").split(","):
                yield Request(f"data:,{page}")


if __name__ == "__main__":
    with redis.Redis(port=PORT) as client:
        client.rpush("pages:start_urls", *(json.dumps({"url": f"data:,{word}"}) for word in sys.argv[2:]))
