"""Models trained: `teach` on your task, the compact and vision-language networks, corpora, calibration."""
