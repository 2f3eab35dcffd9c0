package httpsyntax

import (
	"net/netip"
	"strings"
	"testing"
)

func TestMethods(t *testing.T) {
	t.Parallel()
	m := Methods{"PROPFIND", "M-SEARCH", "CONNECT", "A B"}
	for method, want := range map[string]string{
		"GET": "", "HEAD": "", "POST": "", "PUT": "", "PATCH": "", "DELETE": "", "OPTIONS": "", "PROPFIND": "", "M-SEARCH": "",
		"DEL":      "not one of GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, PROPFIND, M-SEARCH",
		"A B":      "not an HTTP method",
		"propfind": "not one of", "get": "upper case: GET", "Delete": "upper case: DELETE",
		"CONNECT": "tunnel", "connect": "tunnel", "TRACE": "credentials", "Trace": "credentials",
		"": "not an HTTP method", "GET /": "not an HTTP method", "GET\n": "not an HTTP method", "GÉT": "not an HTTP method",
	} {
		if got := m.Fault(method); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%q: %q, want %q", method, got, want)
		}
	}
}

// The fault of a raw character names its place and what to write instead, and quotes no part of the URL.
func TestRawCharacters(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"http://h/a b":                      "a space at position 11; leave it out, or behind the host write it as %20",
		"http://h/?q=\"hush\"":              "a quote at position 13; leave it out, or behind the host write it as %22",
		"http://h/?q='hush'":                "an apostrophe at position 13; leave it out, or behind the host write it as %27",
		"http://h/?q=é\\hush":               "a backslash at position 14; leave it out, or behind the host write it as %5C",
		"http://h/\r\nHush: 1":              "a control character at position 10; leave it out, or behind the host write it as %0D",
		"http://h/?\u0085":                  "a control character at position 11; leave it out, or behind the host write it as %C2%85",
		"http://h/?\u2028":                  "a space that is not ASCII at position 11; leave it out, or behind the host write it as %E2%80%A8",
		"http://us er:hush@h/":              "a space at position 10; leave it out, or behind the host write it as %20",
		" http://h/":                        "a space at position 1; leave it out, or behind the host write it as %20",
		"http://h/%20%22%27%5C%0A?a=%20+b#": "",
	} {
		_, got := ParseURL(text)
		if got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestParseURL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"http://a":                          "a",
		"HTTPS://A.b:443/x?y#z":             "A.b:443",
		"http://u:p@a_b.c-d:/":              "a_b.c-d:",
		"http://[::1]:80/":                  "[::1]:80",
		"http://[fe80::1%25eth0]/":          "[fe80::1%eth0]",
		"http://192.0.2.1.":                 "!is a number",
		"http://r3---sn-1.example":          "r3---sn-1.example",
		"http://b\u00fccher.TEST:8080/":     "xn--bcher-kva.test:8080",
		"http://XN--bcher-KVA.test":         "XN--bcher-KVA.test",
		"http://１２７.0.0.1/":                 "127.0.0.1",
		"http://①②⑦.0.0.1/":                 "127.0.0.1",
		"http://lo\u00adcalhost/":           "localhost",
		"http://０ｘ７ｆ．１":                     "!is a number",
		"http://2130706433":                 "!is a number",
		"http://xn--a/":                     "!IDNA",
		"http://a\u200db.test":              "!IDNA",
		"http://\u00fc..test":               "!1 to 63",
		"http://ho;st/":                     "!1 to 63",
		"http://" + strings.Repeat("a", 64): "!1 to 63",
		"http://[fe80::1%25a%20b]/":         "!zone",
		"http://h:0":                        "!port",
		"http://h:65536":                    "!port",
		"http://h:x":                        "!not a valid URL",
		"http://ho%20st":                    "!valid",
		"http://h/\xff":                     "!UTF-8",
		"http://0%bc0":                      "!IDNA",
		"":                                  "!missing",
		"/x":                                "!must begin",
		"ftp://h":                           "!must begin",
		"http://:80":                        "!no host",
	} {
		u, fault := ParseURL(text)
		if bad, ok := strings.CutPrefix(want, "!"); ok {
			if !strings.Contains(fault, bad) || u != nil {
				t.Errorf("%q: %v, %q", text, u, fault)
			}
		} else if fault != "" || u.Host != want {
			t.Errorf("%q: %v, %q, want %q", text, u, fault, want)
		}
	}
}

// The host of an accepted URL is an address, or a name in ASCII that IDNA leaves as it is, and its request line has one word for it.
func FuzzParseURL(f *testing.F) {
	for _, text := range []string{"http://１２７.0.0.1:80/a?b#c", "https://u:p@b\u00fccher.test./", "http://[fe80::1%25e]/", "http://0x7f.1/ \"'\\"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		u, fault := ParseURL(text)
		if fault != "" {
			if strings.ContainsAny(fault, "\r\n\x00") {
				t.Errorf("%q: %q", text, fault)
			}
			return
		}
		host := u.Hostname()
		if again, fault := Host(host); fault != "" || again != host {
			t.Errorf("%q: host %q becomes %q: %s", text, host, again, fault)
		}
		for i := range len(host) {
			if host[i] > 0x7e || host[i] <= ' ' {
				t.Errorf("%q: host %q", text, host)
			}
		}
		if _, err := netip.ParseAddr(host); err != nil && strings.Contains(host, ":") {
			t.Errorf("%q: host %q", text, host)
		}
		if request := u.RequestURI(); strings.ContainsAny(request, " \t\r\n\"'\\\x00") {
			t.Errorf("%q: the request line would have %q", text, request)
		}
	})
}

func TestHeaderFaults(t *testing.T) {
	t.Parallel()
	for header, want := range map[[2]string]string{
		{"X-A", "é\tb"}: "", {"te", "gzip"}: "te belongs to the connection", {"content-length", "1"}: "content-length is set from the body",
		{"X-A", "a\r\nb"}: "X-A has a control character", {"X-A", "\xff"}: "UTF-8", {"X-A", "\x7f"}: "X-A has a control character",
		{"Authorization: hush", ""}: " a name of 19 bytes", {"x-twice", "2"}: "x-twice is given twice",
	} {
		faults := HeaderFaults(map[string]string{"X-Twice": "1", header[0]: header[1]})
		if len(faults) > 1 || (len(faults) == 0) != (want == "") || want != "" && !strings.Contains(faults[0].Name+" "+faults[0].Reason, want) {
			t.Errorf("%q: %q, want %q", header, faults, want)
		}
	}
}
