"""What is shown: arrays and colours checked, panels of frames and points, drawn by matplotlib, as files."""
