package page

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v4"
	"golang.org/x/crypto/bcrypt"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/internal/filewatch"
	"github.com/headway-go/headway/internal/strictyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker/control"
)

// bcryptCost is bcrypt's cost for a password: some 0.2 s. Tests use less.
var bcryptCost = 12

// Users are the people with passwords and the programs with tokens of one file. It is safe for concurrent use. While a Page uses
// it, it is read again a second or two after it has changed, or within eleven where the system reports no changes, and people
// removed from it are logged out. A file with an error leaves the users as they were.
type Users struct {
	path string

	mu   sync.Mutex
	file userFile
}

type userFile struct {
	people map[string]person
	tokens []token
	groups map[string]bool // those that have members
}

type person struct {
	actor Actor
	hash  []byte
}

type token struct {
	actor Actor
	sum   [sha256.Size]byte
}

// LoadUsers reads a file of users:
//
//	people:
//	  anna: {password: "$2a$12$…", role: admin}
//	  ben: {password: "$2a$12$…", role: owner, groups: [team-pay]}
//	tokens:
//	  board: {sha256: 5f16…, role: viewer, scopes: [payments]}
//
// HashPassword and NewToken return its hashes. The error lists every fault with its line.
func LoadUsers(path string) (*Users, error) {
	u := &Users{path: path}
	if err := u.read(); err != nil {
		return nil, err
	}
	return u, nil
}

// HashPassword returns the hash of a password of 8 to 72 bytes for a file of users.
func HashPassword(password string) (string, error) {
	switch {
	case len(password) < 8:
		return "", errors.New("page: the password has fewer than 8 bytes")
	case len(password) > 72:
		return "", errors.New("page: the password has more than 72 bytes, which is all that bcrypt reads")
	}
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcryptCost)
	return string(hash), err
}

// NewToken returns a new token of 256 random bits, and its hash for a file of users.
func NewToken() (token, hash string) {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw) // it never fails
	token = base64.RawURLEncoding.EncodeToString(raw)
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:])
}

// follow reads the file again whenever it has changed, until ctx ends.
func (u *Users) follow(ctx context.Context, log *slog.Logger) {
	for range filewatch.Changes(ctx, u.path) {
		if err := u.read(); err != nil {
			log.WarnContext(ctx, "page: the file of users has an error; the users from before still count", "error", err.Error())
		}
	}
}

// read reads the file. A file with an error leaves the users as they were.
func (u *Users) read() error {
	data, err := os.ReadFile(u.path)
	if err != nil {
		return fmt.Errorf("page: read users: %w", err)
	}
	parsed, err := parseUsers(u.path, data)
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.file = parsed
	return nil
}

func (u *Users) current() userFile {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.file
}

// someHash is compared with the password of an unknown name, so that the time does not show which names exist.
var someHash = sync.OnceValue(func() []byte {
	hash, _ := bcrypt.GenerateFromPassword([]byte("no password of a person"), bcryptCost)
	return hash
})

// atOnce bounds how many passwords are compared at once, since each comparison keeps a processor busy.
var atOnce = make(chan struct{}, 2)

// password returns the person with a name and a password, and the hash that matched.
func (u *Users) password(name, password string) (Actor, []byte, bool) {
	atOnce <- struct{}{}
	defer func() { <-atOnce }()
	p, known := u.current().people[name]
	hash := p.hash
	if !known {
		hash = someHash()
	}
	if bcrypt.CompareHashAndPassword(hash, []byte(password)) != nil || !known {
		return Actor{}, nil, false
	}
	return p.actor, hash, true
}

func (u *Users) person(name string, hash []byte) (Actor, bool) {
	p, known := u.current().people[name]
	return p.actor, known && subtle.ConstantTimeCompare(p.hash, hash) == 1
}

// withOwnGroup adds a group of the actor's own name, unless that group has members: "owner: anna" then means the person.
func (u *Users) withOwnGroup(actor Actor) Actor {
	if !u.current().groups[actor.Name] {
		actor.Groups = append(slices.Clone(actor.Groups), actor.Name)
	}
	return actor
}

func (u *Users) token(text string) (actor Actor, ok bool) {
	sum := sha256.Sum256([]byte(text))
	for _, t := range u.current().tokens {
		if subtle.ConstantTimeCompare(t.sum[:], sum[:]) == 1 {
			actor, ok = t.actor, true
		}
	}
	return actor, ok
}

var usersFormat = strictyaml.Format{TooLong: "let a proxy authenticate people", Empty: "write people: and names under it"}

type userReader struct {
	strictyaml.Faults
	out userFile
}

var roleNames = []string{"viewer", "owner", "admin"}

func parseUsers(name string, data []byte) (userFile, error) {
	r := &userReader{out: userFile{people: map[string]person{}, groups: map[string]bool{}}}
	if root := usersFormat.Read(data, &r.Faults); root != nil {
		for section, f := range r.Named(root, "people", "tokens") {
			r.user(f, map[string]string{"people": "password", "tokens": "sha256"}[section])
		}
		if len(r.out.people)+len(r.out.tokens) == 0 && r.None() {
			r.Add(diag.Start, "", "there are neither people nor tokens, so no login would work")
		}
	}
	if !r.None() {
		return userFile{}, &policy.Error{Name: name, Faults: r.All()}
	}
	return r.out, nil
}

func (r *userReader) user(f strictyaml.Field, secret string) {
	if !r.Is(f, yaml.MappingNode, f.Path, "its fields under it: "+secret+" and role") {
		return
	}
	actor, text := Actor{Name: f.Name}, ""
	var at strictyaml.Field
	for _, field := range r.Fields(f.Value, f.Path) {
		switch field.Name {
		case secret:
			at, text = field, r.Text(field, "one value")
		case "role":
			name := r.Text(field, "one value")
			if !slices.Contains(roleNames, name) {
				r.Bad(field, field.Path, "is %q; write %s", diag.Clip(name), diag.OneOf(roleNames))
				continue
			}
			actor.Role, _ = control.ParseRole(name)
		case "groups":
			actor.Groups = r.Texts(field, "[team-pay]")
			for _, group := range actor.Groups {
				r.out.groups[group] = true
			}
		case "scopes":
			actor.Scopes = r.Texts(field, "[team-pay]")
			for _, scope := range actor.Scopes {
				if _, err := policy.ParseScope(strings.ReplaceAll(scope, "*", "x")); err != nil {
					r.Bad(field, field.Path, "has %q, which is no scope", diag.Clip(scope))
				}
			}
		default:
			r.Bad(field, field.Path, "is not a field of it; write %s", diag.OneOf([]string{secret, "role", "groups", "scopes"}))
		}
	}
	if actor.Role == RoleNone {
		r.Add(strictyaml.PlaceOf(f.Key), diag.PathTo(f.Path, "role"), "role is missing; write "+diag.OneOf(roleNames))
	}
	if at.Value == nil {
		r.Add(strictyaml.PlaceOf(f.Key), diag.PathTo(f.Path, secret), secret+" is missing; write the hash that worker page hash or worker page token prints")
		return
	}
	if secret == "password" {
		if _, err := bcrypt.Cost([]byte(text)); err != nil {
			r.Bad(at, at.Path, "is no bcrypt hash; write the one that worker page hash prints")
		}
		r.out.people[f.Name] = person{actor, []byte(text)}
		return
	}
	t := token{actor: actor}
	if sum, err := hex.DecodeString(text); err != nil || copy(t.sum[:], sum) != len(t.sum) || len(sum) != len(t.sum) {
		r.Bad(at, at.Path, "is no SHA-256 in hex; write the one that worker page token prints")
	}
	r.out.tokens = append(r.out.tokens, t)
}
