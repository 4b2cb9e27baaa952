"""The one door: clipping, noise, charging; nothing else turns vectors into public numbers."""
