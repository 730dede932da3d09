"""The engine: all of toki's judgement, without I/O, threads or a clock."""
