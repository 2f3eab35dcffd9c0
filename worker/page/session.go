package page

import (
	"crypto/rand"
	"crypto/sha256"
	"maps"
	"net/http"
	"sync"
	"time"
)

const (
	sessionCookie = "headway_session"
	// sessionIdle is how long an unused session lasts, and sessionLongest how long any session lasts.
	sessionIdle, sessionLongest = 2 * time.Hour, 12 * time.Hour
)

type session struct {
	name        string
	hash        []byte // of the password at that time: a new password ends the session
	begun, used time.Time
}

// sessions are the sessions of this process, in memory, by the hashes of their ids.
type sessions struct {
	mu   sync.Mutex
	byID map[[sha256.Size]byte]session
}

// begin returns the id of a new session, and forgets those that have ended.
func (s *sessions) begin(name string, hash []byte, now time.Time) string {
	id := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.byID, func(_ [sha256.Size]byte, other session) bool { return other.over(now) })
	s.byID[sha256.Sum256([]byte(id))] = session{name, hash, now, now}
	return id
}

func (s session) over(now time.Time) bool {
	return now.Sub(s.used) > sessionIdle || now.Sub(s.begun) > sessionLongest
}

// of returns the session of a request, and false if it has none or it has ended. It does not count as a use.
func (s *sessions) of(r *http.Request, now time.Time) (session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	found, is := s.byID[sessionKey(r)]
	return found, is && !found.over(now)
}

func (s *sessions) use(r *http.Request, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if found, is := s.byID[sessionKey(r)]; is && !found.over(now) {
		found.used = now
		s.byID[sessionKey(r)] = found
	}
}

func (s *sessions) end(r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, sessionKey(r))
}

// sessionKey returns the hash of the id in a request's cookie, or the zero hash, which no session has.
func sessionKey(r *http.Request) (key [sha256.Size]byte) {
	if cookie, err := r.Cookie(sessionCookie); err == nil {
		key = sha256.Sum256([]byte(cookie.Value))
	}
	return key
}

// cookie returns the cookie of a session. An empty id deletes it.
func cookie(r *http.Request, prefix, id string) *http.Cookie {
	c := &http.Cookie{
		Name: sessionCookie, Value: id, Path: prefix + "/", HttpOnly: true, SameSite: http.SameSiteLaxMode,
		Secure: r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https",
	}
	if id == "" {
		c.MaxAge = -1
	}
	return c
}
