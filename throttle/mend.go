package throttle

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/lua"
)

// notDamage is in the errors that scripts fail with for other reasons than a damaged value. A
// command that the user may not run is refused in other words by each version. Before version 7 Redis puts a command's own error behind "Error running script".
var notDamage = []string{
	"NOPERM", "can't run this command", "can't access", "No permissions", "ACL failure in script", "OOM ", "READONLY", "NOSCRIPT", "BUSY", "LOADING",
	"MOVED ", "ASK ", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "MISCONF", "NOREPLICAS", "UNKILLABLE", "killed by user",
}

// errDamaged is the error of a reply that names what is no ticket: nobody can say of it that there
// is no such task.
var errDamaged = errors.New("a ticket is damaged")

// damaged says whether an error is that of a script that failed at a value, or of a command
// that met a key of another type. Redis tells of the first as "user_script:12: attempt to
// perform arithmetic on a nil value", before version 7 behind "Error running script", and
// miniredis behind "Error compiling script".
func damaged(err error) bool {
	if err == nil {
		return false
	}
	if errors.Is(err, errDamaged) || redis.HasErrorPrefix(err, "WRONGTYPE") {
		return true
	}
	if !redis.HasErrorPrefix(err, "") { // not the server's
		return false
	}
	text := err.Error()
	in := func(part string) bool { return strings.Contains(text, part) }
	return slices.ContainsFunc([]string{"user_script", "Error running script", "Error compiling script"}, in) &&
		!slices.ContainsFunc(notDamage, in)
}

// vainMends is for how long nothing is mended after that has dropped nothing: what a script fails
// at then is something else, such as a rule's state of another type, and to look through
// all that a provider keeps takes the server milliseconds.
const vainMends = time.Second

// mended has what is damaged of what the turns of a provider keep dropped, where that is what a
// script has failed at, and says whether the script is worth sending once more. The lines are
// those of the call; see lua/mend.lua.
func (l *Limiter) mended(ctx context.Context, provider string, lines []any, cause error) bool {
	if !damaged(cause) {
		return false
	}
	scopes := l.lines.of(provider)
	if !scopes.mendable() {
		return false
	}
	prefix := keyspace(l.cfg.Prefix).provider(provider)
	keys := slices.Concat(shared(prefix), []any{parkedKey(prefix)}, lines)
	reply, err := l.lists(ctx, lua.Mend, keys, []any{l.clock()})
	if err != nil || len(reply) != 1 {
		scopes.mendedInVain()
		return false
	}
	if dropped, _ := reply[0].(int64); dropped > 0 {
		l.cfg.Logger.WarnContext(ctx, "damaged values of those who wait were dropped; their tasks come back by themselves",
			"provider", provider, "dropped", dropped, "error", cause)
	} else if scopes.mendedInVain() { // or another process was first
		l.cfg.Logger.WarnContext(ctx, "a script failed, and no damaged value was found", "provider", provider, "error", cause)
	}
	return true
}

// mending is lists for a script that reads what the turns of a provider keep: where it fails at
// a damaged value, that is dropped, and it is sent once more.
func (l *Limiter) mending(ctx context.Context, provider string, script *lua.Script, t *table, keys, args []any) ([]any, error) {
	reply, err := l.lists(ctx, script, keys, args)
	if err != nil && l.mended(ctx, provider, t.lines, err) {
		reply, err = l.lists(ctx, script, keys, args)
	}
	return reply, err
}

func (s *scopeSet) mendable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vain.IsZero() || time.Since(s.vain) >= vainMends
}

// mendedInVain notes that there was nothing to mend, and says whether it is worth a line in the log:
// the last one was a while ago.
func (s *scopeSet) mendedInVain() (tell bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tell = s.vain.IsZero() || time.Since(s.vain) >= time.Minute
	s.vain = time.Now()
	return tell
}
