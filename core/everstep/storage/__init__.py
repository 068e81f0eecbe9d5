"""The storage tier's folder, on any filesystem that fsspec knows. Without torch."""
