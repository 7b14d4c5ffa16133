"""One seed's draw of everything but the strategy, and how drivers read it: all devices at once, or device by device."""
