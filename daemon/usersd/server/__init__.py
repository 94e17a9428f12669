"""waitress with several processes, time limits for slow clients and separate thread pools."""
