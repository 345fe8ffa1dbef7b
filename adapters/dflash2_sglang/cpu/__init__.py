"""What SGLang lacks on a CPU. Each module mends one thing, none of them is about DFlash 2."""
