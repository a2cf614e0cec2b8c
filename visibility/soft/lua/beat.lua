-- Somebody maintains.
redis.call('SET', base .. ':maintained', text(now), 'PX', ARGV[1])
return now
