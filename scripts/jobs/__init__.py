"""What the scripts share: typed configuration, the study's matrix, and the frame a job runs in."""
