package throttle

import (
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// scriptOf and args call a script past the limiter, as any client of Redis can.
func scriptOf(s *lua.Script, kinds string) *redis.Script {
	return redis.NewScript(s.For(kinds).Source())
}

func (p *compiledScope) args(cost int64, first ...any) []any {
	return p.appendArgs(first, price{each: cost})
}
