"""What is written beside the masks: labels, names, lists, the contact sheet."""
