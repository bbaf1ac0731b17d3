"""Retrieval: find the moments of long recordings that show an instruction being done."""
