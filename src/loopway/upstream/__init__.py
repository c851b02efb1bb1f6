"""Everything that goes out to model servers. It must not know what a request means, nor who asked."""
