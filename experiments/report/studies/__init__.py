"""The outputs of studies, one file each: tables as text, figures as PNG files."""
