"""The parts of `demerit.llm.client`: asks, answers, the cache, the money, the wire and the tolerant reader."""
