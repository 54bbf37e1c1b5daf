"""Engine dialects: what an engine must be told so that each stage does its part."""
