package throttle

import (
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// scriptOf calls a script past the limiter, as any client of Redis can.
func scriptOf(s *lua.Script, kinds string) *redis.Script {
	return redis.NewScript(s.For(kinds).Source())
}
