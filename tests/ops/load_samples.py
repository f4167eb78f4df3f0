"""Figures as the scenarios that watch a gateway give them, with values missing."""

_WATCHED = {
    "streams": 16,
    "arms": {"with": [{"tokens_per_s": 96.0, "cpu_share": 1.0, "client_cpu_share": 0.5, "polls": 20}]},
    "ratios": [],
    "null_ratios": [],
}
_SCRAPED = {"keys": 9, "outcomes": {"completed": 96}, "scrape_s": {"count": 0}, "bytes": 1, "series": 1}
WATCHING = {
    "scrape": {"classes": 8, "scrapes": 100, "arms": {"9": [_SCRAPED]}},
    "watched": _WATCHED,
    "watched-engine": _WATCHED,
}
