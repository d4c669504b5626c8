"""The outputs of benchmarks: tables as text, figures as PNG files."""
