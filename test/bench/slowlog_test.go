package bench

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

const (
	// slowFrom is what a script must take for Redis to log it in a scenario, and slowLogged how many of
	// those it keeps: enough that the longest of a run are among them.
	slowFrom   = 500 * time.Microsecond
	slowLogged = 20_000
	// others is what scripts are called that are none of ours.
	others = "asynq's"
)

// countAnew has Redis begin to count commands and to log scripts that take long.
func countAnew(b *testing.B, rdb *redis.Client) {
	b.Helper()
	ctx := context.Background()
	_, err := rdb.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.ConfigSet(ctx, "slowlog-log-slower-than", strconv.FormatInt(slowFrom.Microseconds(), 10))
		pipe.ConfigSet(ctx, "slowlog-max-len", strconv.Itoa(slowLogged))
		pipe.SlowLogReset(ctx)
		pipe.ConfigResetStat(ctx)
		return nil
	})
	must(b, err)
}

// scriptTime returns how long Redis has run scripts, since it began to count. What they call
// is counted once more in its own name, so other commands are left out.
func scriptTime(b *testing.B, rdb *redis.Client) time.Duration {
	b.Helper()
	ran := commandStats(b, rdb)
	return ran["evalsha"].took + ran["eval"].took
}

// slowScript is what Redis has logged of a script.
type slowScript struct {
	name    string
	longest time.Duration
}

// longestScripts returns the longest call of each script, as far as Redis has logged it, the longest
// first. A script's first call by its text, for which Redis compiles it, is left out.
func longestScripts(b *testing.B, rdb *redis.Client) []slowScript {
	b.Helper()
	logged, err := rdb.SlowLogGet(context.Background(), -1).Result()
	must(b, err)
	byName := map[string]slowScript{}
	for _, one := range logged {
		if len(one.Args) < 2 || !strings.EqualFold(one.Args[0], "evalsha") {
			continue
		}
		name, ours := scriptNames()[one.Args[1]]
		if !ours {
			name = others
		}
		s := byName[name]
		s.name, s.longest = name, max(s.longest, one.Duration)
		byName[name] = s
	}
	return slices.SortedFunc(maps.Values(byName), func(x, y slowScript) int { return cmp.Compare(y.longest, x.longest) })
}

// scriptNames returns the names of our scripts by their hashes.
var scriptNames = sync.OnceValue(func() map[string]string {
	names := map[string]string{}
	for _, s := range append(lua.All(), lua.OnAsynq()...) {
		names[s.SHA()] = s.Name
	}
	return names
})

// longestOfOurs is the longest call of a script of ours, -1 where none was logged.
func longestOfOurs(scripts []slowScript) time.Duration {
	for _, s := range scripts {
		if s.name != others {
			return s.longest
		}
	}
	return -1
}

// sayLongest lists scripts with their longest calls.
func sayLongest(scripts []slowScript) string {
	var said []string
	for _, s := range scripts {
		said = append(said, fmt.Sprintf("%s %.1f", s.name, float64(s.longest.Microseconds())/1000))
	}
	if len(said) == 0 {
		return "no script took long"
	}
	return "longest, ms: " + strings.Join(said, ", ")
}
