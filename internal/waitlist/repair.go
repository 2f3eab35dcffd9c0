package waitlist

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/wire"
	"github.com/headway-go/headway/lua"
)

// notDamage is in the errors that scripts fail with for other reasons than a damaged value. Each version of Redis refuses a command
// that the user may not run in other words. Before version 7 Redis puts a command's own error behind "Error running script".
var notDamage = []string{
	"NOPERM", "can't run this command", "can't access", "No permissions", "ACL failure in script", "OOM ", "READONLY", "NOSCRIPT", "BUSY", "LOADING",
	"MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "NOREPLICAS", "UNKILLABLE", "killed by user",
}

// damaged reports whether an error is that of a script that failed at a value, of a command that met a key of another type, or of
// a reply that cannot be read. Redis words the first as "user_script:12: attempt to perform arithmetic on a nil value", before
// version 7 behind "Error running script", and miniredis behind "Error compiling script".
func damaged(err error) bool {
	if errors.Is(err, wire.ErrReply) || redis.HasErrorPrefix(err, "WRONGTYPE") {
		return true
	}
	if !redis.HasErrorPrefix(err, "") { // not the server's
		return false
	}
	in := func(part string) bool { return strings.Contains(err.Error(), part) }
	return slices.ContainsFunc([]string{"user_script", "Error running script", "Error compiling script"}, in) && !slices.ContainsFunc(notDamage, in)
}

const (
	// repairPause is how long a provider is not repaired again. What a script fails at then is something else, such as the state
	// of a rule, and to read all lines of a provider takes the server milliseconds.
	repairPause = time.Second
	// repairBatch is of how many scopes one call makes the tree anew.
	repairBatch = 100
)

// repair makes the tree of a provider anew from its lines if an error says that a value is damaged, and reports whether the call
// is worth sending once more. A line whose scope or queue was lost is entered again when one of its tasks joins again.
func (l *List) repair(ctx context.Context, provider string, cause error) bool {
	if !damaged(cause) {
		return false
	}
	l.mu.Lock()
	last := l.repaired[provider]
	due := time.Since(last) >= repairPause
	if due {
		l.repaired[provider] = time.Now()
	}
	l.mu.Unlock()
	if !due {
		return false
	}
	paths := l.pathsOf(ctx, provider)
	dropped, err := l.sendRepair(ctx, provider, "begin", nil)
	if err != nil {
		return false
	}
	for _, verb := range []string{"drop", "enter"} {
		for some := range slices.Chunk(paths, repairBatch) {
			n, err := l.sendRepair(ctx, provider, verb, some)
			if dropped += n; err != nil {
				return false
			}
		}
	}
	if time.Since(last) >= time.Minute {
		l.cfg.Logger.WarnContext(ctx, "damaged value found; the order of waiters was rebuilt from their queues",
			"provider", provider, "dropped", dropped, "error", cause)
	}
	return true
}

// pathsOf returns the scopes in which tasks wait: none if the hash of their rules is what is damaged.
func (l *List) pathsOf(ctx context.Context, provider string) (paths []string) {
	for cursor := uint64(0); ; {
		fields, next, err := l.Scan(ctx, provider, "rules", cursor)
		for two := range slices.Chunk(fields, 2) {
			paths = append(paths, two[0])
		}
		if cursor = next; err != nil || cursor == 0 {
			slices.Sort(paths)
			return slices.Compact(paths) // a scan may return a field twice
		}
	}
}

func (l *List) sendRepair(ctx context.Context, provider, verb string, paths []string) (dropped int64, err error) {
	args := []any{l.cfg.Clock(), verb}
	for _, path := range paths {
		args = append(args, path)
	}
	_, err = l.runOnce(ctx, provider, lua.Repair, [][]any{args}, func(_ int, reply any) (int64, error) {
		n, ok := reply.(int64)
		if dropped = n; !ok {
			return 0, wire.ErrReply
		}
		return 0, nil
	})
	return dropped, err
}
