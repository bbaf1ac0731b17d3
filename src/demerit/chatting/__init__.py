"""The parts of `demerit.chat`: asks, answers, the cache, the money, the wire and the tolerant reader."""
