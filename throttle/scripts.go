package throttle

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
)

var (
	decideScript    = lua.Decide
	settleScript    = lua.Settle
	resetScript     = lua.Reset
	reportScript    = lua.Report
	heartbeatScript = lua.Heartbeat
)

// run runs a script under a time-out. While a cluster moves the slot of its keys, it is sent again.
func run(ctx context.Context, rdb redis.UniversalClient, timeout time.Duration, script *lua.Script, prefix string, args ...any) (reply any, err error) {
	err = wire.Send(ctx, rdb, timeout, func(ctx context.Context) (err error) {
		reply, err = wire.Run(ctx, rdb, script, prefix, args...)
		return err
	})
	return reply, err
}
