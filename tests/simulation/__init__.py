"""The whole admission path under a false clock: proxy's and worker's deciders, joined by a cost model."""
