"""Which request enters the batch, and when: a pure core that meets events and returns instructions."""
