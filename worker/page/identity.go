package page

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/headway-go/headway/internal/control"
)

// Actor is a person or program that uses the page: a name for the history, groups that are compared
// with a scope's owner, a role, and the scopes that it may see.
type Actor = control.Actor

// Role is what an Actor may do.
type Role = control.Role

// The roles. A viewer sees, an owner also acts in its own scopes, and an admin does everything.
const (
	RoleNone   = control.RoleNone
	RoleViewer = control.RoleViewer
	RoleOwner  = control.RoleOwner
	RoleAdmin  = control.RoleAdmin
)

// sameRights reports whether two actors are one person with the same rights.
func sameRights(a, b Actor) bool {
	same := func(x, y []string) bool {
		return slices.Equal(slices.Sorted(slices.Values(x)), slices.Sorted(slices.Values(y)))
	}
	return a.Name == b.Name && a.Role == b.Role && same(a.Groups, b.Groups) && same(a.Scopes, b.Scopes)
}

// Proxy is a reverse proxy that authenticates requests and names the user in headers, such as
// oauth2-proxy. Headers count only in requests from one of its Networks; all other requests are
// refused.
type Proxy struct {
	// Networks are the addresses that the proxy's requests come from. Required.
	Networks []netip.Prefix
	// UserHeader is the header with the name. Defaults to X-Forwarded-User.
	UserHeader string
	// GroupsHeader is the header with the groups, separated by commas. Defaults to X-Forwarded-Groups.
	GroupsHeader string
	// Admins and Viewers are the names and groups with these roles. All others are RoleOwner: viewers that
	// may act in the scopes that they own.
	Admins, Viewers []string
}

// check returns what is wrong with the configuration.
func (p *Proxy) check() error {
	if len(p.Networks) == 0 {
		return errors.New("page: Proxy.Networks is empty: name the networks that the proxy's requests come from")
	}
	return nil
}

// identify returns the actor of a request, and false if the request does not come from the proxy, or
// has no name.
func (p *Proxy) identify(r *http.Request) (Actor, bool) {
	from, ok := remote(r)
	if !ok || !slices.ContainsFunc(p.Networks, func(n netip.Prefix) bool { return n.Contains(from) }) {
		return Actor{}, false
	}
	name := r.Header.Values(or(p.UserHeader, "X-Forwarded-User"))
	if len(name) != 1 || strings.TrimSpace(name[0]) == "" {
		return Actor{}, false
	}
	who := Actor{Name: strings.TrimSpace(name[0]), Role: RoleOwner}
	for _, line := range r.Header.Values(or(p.GroupsHeader, "X-Forwarded-Groups")) {
		for group := range strings.SplitSeq(line, ",") {
			if group = strings.TrimSpace(group); group != "" {
				who.Groups = append(who.Groups, group)
			}
		}
	}
	named := func(list []string) bool {
		return slices.ContainsFunc(list, func(one string) bool { return one == who.Name || slices.Contains(who.Groups, one) })
	}
	switch {
	case named(p.Admins):
		who.Role = RoleAdmin
	case named(p.Viewers):
		who.Role = RoleViewer
	}
	return who, true
}

func or(text, standard string) string {
	if text == "" {
		return standard
	}
	return text
}

// remote returns the address that a request comes from.
func remote(r *http.Request) (netip.Addr, bool) {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, false
	}
	return at.Addr().Unmap(), true
}

// local reports whether a request was made on this machine to a name of this machine. The check of the
// name refuses a web page whose own name resolves to 127.0.0.1.
func local(r *http.Request) bool {
	from, ok := remote(r)
	if !ok || !from.IsLoopback() {
		return false
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	if strings.EqualFold(strings.TrimSuffix(host, "."), "localhost") {
		return true
	}
	at, err := netip.ParseAddr(host)
	return err == nil && at.IsLoopback()
}
