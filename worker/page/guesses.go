package page

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// triesAtOne bounds the passwords a minute at one name from one address, or from a browser that has logged in before;
	// triesAtAll those at one name, and those from one address.
	triesAtOne, triesAtAll = 10, 100
	// mostKeys bounds the memory of tries. Some 600 a minute can be made, since comparing takes its time.
	mostKeys = 30_000
	// mostWaiting is how many tries wait for their turn to be compared.
	mostWaiting = 20
)

// guesses bounds how fast passwords are tried. Guesses at a name lock out neither others nor, in a browser
// that it has used before, the person of that name. It is safe for concurrent use.
type guesses struct {
	waiting chan struct{}

	mu      sync.Mutex
	full    map[tryKey]time.Time // when all tries of a key have come back
	cleaned time.Time            // when keys that have all were last forgotten
}

type tryKey [sha256.Size]byte

func keyOf(parts ...string) tryKey { return sha256.Sum256([]byte(strings.Join(parts, "\x00"))) }

func newGuesses() *guesses {
	return &guesses{waiting: make(chan struct{}, mostWaiting), full: map[tryKey]time.Time{}}
}

// enter counts a try at a name and reports whether it may be made; then leave must be called after it. browser is the
// id of a browser in which the person has logged in before, or empty.
func (g *guesses) enter(name, from, browser string, now time.Time) (leave func(), ok bool) {
	if browser != "" {
		return func() {}, g.count(now, map[tryKey]int{keyOf("browser", name, browser): triesAtOne, keyOf("browsers", name): triesAtAll})
	}
	select {
	case g.waiting <- struct{}{}:
		leave = func() { <-g.waiting }
	default:
		return nil, false
	}
	if !g.count(now, map[tryKey]int{keyOf("one", name, from): triesAtOne, keyOf("name", name): triesAtAll, keyOf("address", from): triesAtAll}) {
		leave()
		return nil, false
	}
	return leave, true
}

// count counts a try under some keys, each with its tries a minute, unless a key has none left.
func (g *guesses) count(now time.Time, tries map[tryKey]int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := map[tryKey]time.Time{}
	for key, most := range tries {
		at := g.full[key]
		if at.Before(now) {
			at = now
		}
		if next[key] = at.Add(time.Minute / time.Duration(most)); next[key].Sub(now) > time.Minute {
			return false
		}
	}
	if len(g.full)+len(next) > mostKeys && now.Sub(g.cleaned) >= time.Second {
		maps.DeleteFunc(g.full, func(_ tryKey, at time.Time) bool { return at.Before(now) })
		g.cleaned = now
	}
	if len(g.full)+len(next) > mostKeys {
		return false
	}
	maps.Copy(g.full, next)
	return true
}

// sender returns the address that a request comes from, through the proxy if there is one: for IPv6 the /64 network.
func (h *handler) sender(r *http.Request) string {
	at, ok := remote(r)
	if !ok {
		return r.RemoteAddr
	}
	if lines := r.Header.Values("X-Forwarded-For"); len(lines) > 0 && h.cfg.Proxy != nil && h.cfg.Proxy.sends(r) {
		hops := strings.Split(lines[len(lines)-1], ",")
		if of, err := netip.ParseAddr(strings.TrimSpace(hops[len(hops)-1])); err == nil {
			at = of.Unmap()
		}
	}
	if at.Is6() {
		return netip.PrefixFrom(at, 64).Masked().String()
	}
	return at.String()
}

// browserCookie marks a browser in which a person has logged in. It gives no right.
const browserCookie = "headway_browser"

// browserCookieOf returns the cookie of a new browser of a person, until the password changes.
func browserCookieOf(r *http.Request, prefix, name string, hash []byte) *http.Cookie {
	id := rand.Text()
	c := cookie(r, prefix, id+"."+browserMAC(name, hash, id))
	c.Name, c.Path, c.MaxAge = browserCookie, prefix+"/login", 365*24*60*60
	return c
}

// browser returns the id of a request's browser if the person has logged in there before.
func (u *Users) browser(r *http.Request, name string) string {
	p, known := u.current().people[name]
	i := slices.IndexFunc(r.Cookies(), func(c *http.Cookie) bool { return c.Name == browserCookie })
	if !known || i < 0 {
		return ""
	}
	id, mac, _ := strings.Cut(r.Cookies()[i].Value, ".")
	if !hmac.Equal([]byte(mac), []byte(browserMAC(name, p.hash, id))) {
		return ""
	}
	return id
}

func browserMAC(name string, hash []byte, id string) string {
	mac := hmac.New(sha256.New, hash)
	_, _ = mac.Write([]byte("headway browser\x00" + name + "\x00" + id)) // it never fails
	return hex.EncodeToString(mac.Sum(nil))
}
