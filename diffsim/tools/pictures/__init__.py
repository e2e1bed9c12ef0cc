"""Pictures and their data: checked arrays and colours, panels of frames and points, drawn by matplotlib."""
