-- The blocks of units that replicas hold of one budget: reserves one as far as the bound allows, and
-- strikes others off. What was charged is for the budget's own key to say; this only bounds the sum.
--
-- KEYS[1]  a hash: the name of a block, to its units and the time (us) at which it counts no more
-- ARGV     name of the block to reserve, units, least, bound, life (us), names to be struck off...
--          units 0: nothing is reserved
-- Reply    { units reserved, how many of the names stood there }

local call, pack, unpack_ = redis.call, struct.pack, struct.unpack
local name, units, least = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local bound, life = tonumber(ARGV[4]), tonumber(ARGV[5])
local time = call('TIME')
local now = time[1] * 1000000 + time[2]

local struck = 0
for i = 6, #ARGV do struck = struck + call('HDEL', KEYS[1], ARGV[i]) end
if units == 0 then return { 0, struck } end

local blocks = call('HGETALL', KEYS[1])
local held = 0
for i = 1, #blocks, 2 do
  local size, ends = unpack_('>I7I7', blocks[i + 1])
  -- A time that lies beyond a whole life is of a clock that has gone back since.
  if ends <= now or ends > now + life then
    call('HDEL', KEYS[1], blocks[i])
  else
    held = held + size
  end
end
if held + units > bound then units = bound - held end
if units < least or units <= 0 then return { 0, struck } end
call('HSET', KEYS[1], name, pack('>I7I7', units, now + life))
call('PEXPIRE', KEYS[1], math.ceil(life / 1000))
return { units, struck }
