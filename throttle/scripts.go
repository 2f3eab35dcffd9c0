package throttle

import "github.com/headway-go/headway/lua"

var (
	decideScript    = lua.Next("decide")
	settleScript    = lua.Next("settle")
	renewScript     = lua.Next("renew")
	resetScript     = lua.Next("reset")
	reportScript    = lua.Next("report")
	heartbeatScript = lua.Next("heartbeat")
)
