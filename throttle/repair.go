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

// repairPause is for how long nothing is repaired after that: what a script fails at then is something else,
// such as a rule's state of another type, and to read all that a provider keeps takes the server
// milliseconds.
const repairPause = time.Second

// repairBatch is of how many scopes one call makes the tree anew.
const repairBatch = 100

// repaired has the tree of a provider made anew from its queues, where that is what a script has failed at, and says
// whether the script is worth sending once more. The scopes are those of the call: their queues are there even where the
// tree that lists them is not.
func (l *Limiter) repaired(ctx context.Context, provider string, scopes []string, cause error) bool {
	if !damaged(cause) || !l.nexts.of(provider).repairable() {
		return false
	}
	dropped, err := l.repair(ctx, provider, l.queuesOf(ctx, provider, scopes))
	tells := l.nexts.of(provider).repairedNow()
	if err != nil {
		return false
	}
	if tells {
		l.cfg.Logger.WarnContext(ctx, "damaged value found; the order of waiters was rebuilt from their queues",
			"provider", provider, "dropped", dropped, "error", cause)
	}
	return true
}

// queuesOf returns the scopes of a provider that have a queue, as far as the tree still tells, and others.
func (l *Limiter) queuesOf(ctx context.Context, provider string, others []string) []string {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	prefix := keyspace(l.cfg.Prefix).provider(provider)
	scopes := slices.Clone(others)
	fields, _ := l.rdb.HKeys(ctx, metaKey(prefix)).Result() // of another type, it tells nothing
	for _, field := range fields {
		if path, is := strings.CutPrefix(field, "n"); is && strings.HasSuffix(path, "/") {
			scopes = append(scopes, scopeOf(provider, strings.TrimSuffix(path, "/")))
		}
	}
	members, _ := l.rdb.ZRange(ctx, prefix+"!heap", 0, -1).Result()
	for _, member := range members {
		if path, is := leafScope(member); is {
			scopes = append(scopes, scopeOf(provider, path))
		}
	}
	slices.Sort(scopes)
	return slices.Compact(scopes)
}

func (l *Limiter) repair(ctx context.Context, provider string, scopes []string) (dropped int64, err error) {
	prefix, first := keyspace(l.cfg.Prefix).provider(provider), 1
	for first == 1 || len(scopes) > 0 {
		some := scopes[:min(repairBatch, len(scopes))]
		scopes = scopes[len(some):]
		t := l.table(some)
		args := t.appendArgs([]any{l.clock(), first})
		keys := slices.Concat(queueShared(prefix)[:5], []any{parkedKey(prefix)}, t.queues)
		reply, err := l.lists(ctx, lua.Repair, keys, args)
		if err != nil {
			return dropped, err
		}
		if len(reply) == 1 {
			n, _ := reply[0].(int64)
			dropped += n
		}
		first = 0
	}
	return dropped, nil
}

func (s *nextScopes) repairable() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vain.IsZero() || time.Since(s.vain) >= repairPause
}

// repairedNow notes that the tree was made anew, and says whether it is worth a line in the log:
// the last time was a while ago.
func (s *nextScopes) repairedNow() (tell bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tell = s.vain.IsZero() || time.Since(s.vain) >= time.Minute
	s.vain = time.Now()
	return tell
}
