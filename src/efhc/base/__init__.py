"""What every part stands on: errors, policies, names of arrays, threads, files in and out."""
