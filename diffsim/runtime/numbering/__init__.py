"""Value numbers of what fields held: equal numbers are equal values, without a comparison of any."""
