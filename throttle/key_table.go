package throttle

import "hash/maphash"

// keyTable finds where among the arguments of a batch a key was put. The hashes of a plan's keys are known
// before: a map of strings would be a fifth of what it costs to put a batch together.
type keyTable struct {
	places []uint16 // in the arguments, by hash; 0 for none
	held   int
}

var keySeed = maphash.MakeSeed()

func keyHash(key string) uint64 { return maphash.String(keySeed, key) }

// newKeyTable has room for so many keys before it grows.
func newKeyTable(keys int) keyTable {
	size := 64
	for size < 2*keys {
		size *= 2
	}
	return keyTable{places: make([]uint16, size)}
}

// find returns where a key is, and whether it was there before: otherwise its place is the next, where the
// caller puts it.
func (t *keyTable) find(args []any, key string, hash uint64) (at int, known bool) {
	if 2*t.held >= len(t.places) {
		t.grow(args)
	}
	i := t.slot(args, key, hash)
	if t.places[i] != 0 {
		return int(t.places[i]), true
	}
	t.held++
	t.places[i] = uint16(len(args)) //nolint:gosec // see maxManyKeys
	return len(args), false
}

// slot is where the place of a key stands, or would.
func (t *keyTable) slot(args []any, key string, hash uint64) int {
	mask := len(t.places) - 1
	i := int(hash) & mask                                       //nolint:gosec // bits
	for t.places[i] != 0 && args[t.places[i]].(string) != key { //nolint:forcetypeassert // a key
		i = (i + 1) & mask
	}
	return i
}

func (t *keyTable) grow(args []any) {
	was := t.places
	t.places = make([]uint16, 2*len(was))
	for _, place := range was {
		if place != 0 {
			key := args[place].(string) //nolint:forcetypeassert // a key
			t.places[t.slot(args, key, keyHash(key))] = place
		}
	}
}
