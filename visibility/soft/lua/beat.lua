-- Somebody maintains.
redis.call('SET', base .. ':maintained', text(now), 'PX', KEEP)
return now
