package usage

import (
	"strconv"
	"strings"
	"time"

	"github.com/headway-go/headway/internal/wire"
)

// The bounds of what is kept in Redis of one slot of time.
const (
	mostScopes = 1000 // of a provider, itself among them
	// mostBy is of a scope. With three fields each, their hash stays as small as Redis makes hashes of at most 128 fields.
	mostBy     = 40
	mostFields = 4 + 3*mostBy
	mostKinds  = 8 // units besides requests, of a scope
)

// grain is how long slots of time are, and how far back they can be asked for.
type grain struct {
	name  string
	every time.Duration
	reach time.Duration
}

const day = 24 * time.Hour

// Slots of one length would be too rough for an hour, or too many for a month. Days begin and end by UTC.
var (
	minutes = grain{name: "5m", every: 5 * time.Minute, reach: time.Hour}
	hours   = grain{name: "2h", every: 2 * time.Hour, reach: day}
	days    = grain{name: "1d", every: day, reach: 31 * day}
	grains  = []grain{minutes, hours, days}

	// fine slots are for a chart of the last quarter of an hour. They hold sums alone. Those of a chunk of time are in one hash.
	fine = grain{name: "15s", every: 15 * time.Second, reach: 15 * time.Minute}
)

const chunk = 5 * time.Minute // that of a slot of minutes

// spare is how much longer slots are kept, for clocks that differ.
const spare = time.Minute

// start returns when the slot of a time began, in unix seconds.
func (g grain) start(at time.Time) int64 {
	every := int64(g.every / time.Second)
	return at.Unix() / every * every
}

// ttl is how long a slot is still needed.
func (g grain) ttl(start int64, now time.Time) time.Duration {
	return time.Unix(start, 0).Add(g.every + g.reach + spare).Sub(now)
}

// usedKey is the hash of what was spent from a scope in a slot. scope is what the keys of the scope begin with.
//
//	u, n      units and tasks of all
//	f, r      runs of all that failed, and that the API refused
//	u:by      units of a spender; by is app/queue/type, and /enqueued-by where that is known
//	n:by      tasks
//	t:by      when it was sent last, in unix seconds
//	+unit     units other than requests, of all
//	+unit:by  of a spender
//	s:rule    starts that a shadow rule at the scope was asked about
//	w:rule    how many of them would have waited
func (g grain) usedKey(scope string, start int64) string { return g.key(scope, "!used:", start) }

// sums returns where a slot has the units and tasks of all: the key of a hash, and two of its fields. The hash of fine slots is
//
//	S     units that were spent in the slot that began S seconds after the chunk
//	S:n   tasks
func (g grain) sums(scope string, start int64) (key, units, tasks string) {
	if g != fine {
		return g.usedKey(scope, start), fieldUnits, fieldTasks
	}
	began := minutes.start(time.Unix(start, 0))
	units = strconv.FormatInt(start-began, 10)
	return fineKey(scope, began), units, units + ":n"
}

func fineKey(scope string, began int64) string { return fine.key(scope, "!spent:", began) }

// scopesKey is a sorted set: the scopes of a provider that have such a hash, by units.
func (g grain) scopesKey(provider string, start int64) string {
	return g.key(provider, "!scopes:", start)
}

func (g grain) key(scope, word string, start int64) string {
	return scope + word + g.name + "." + strconv.FormatInt(start, 10)
}

const (
	fieldUnits   = "u"
	fieldTasks   = "n"
	fieldFailed  = "f"
	fieldRefused = "r"
	fieldLast    = "t"
	fieldStarts  = "s"
	fieldWaits   = "w"
	unitMark     = "+"
)

// name encodes a spender as a field name. Different spenders have different names.
func (b By) name() string {
	name := wire.Escape(b.App) + "/" + wire.Escape(b.Queue) + "/" + wire.Escape(b.Type)
	if b.EnqueuedBy != "" {
		name += "/" + wire.Escape(b.EnqueuedBy)
	}
	return name
}

// parseBy decodes a name of a spender.
func parseBy(name string) (By, bool) {
	parts := strings.Split(name, "/")
	if len(parts) < 3 || len(parts) > 4 || len(parts) == 4 && parts[3] == "" {
		return By{}, false
	}
	by := By{App: wire.Unescape(parts[0]), Queue: wire.Unescape(parts[1]), Type: wire.Unescape(parts[2])}
	if len(parts) == 4 {
		by.EnqueuedBy = wire.Unescape(parts[3])
	}
	return by, true
}
