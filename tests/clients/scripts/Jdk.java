import java.io.InputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.Callable;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

/** The JDK's HttpClient, which asks for HTTP/2 by an upgrade: `java Jdk.java REAL_URL TALKER_URL`. */
class Jdk {
    static final String CALL = "CALL add {\\\"a\\\": 2, \\\"b\\\": 3}";
    static final String TOOLS =
            "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"parameters\": {\"type\": \"object\","
                    + " \"properties\": {\"a\": {\"type\": \"integer\"}, \"b\": {\"type\": \"integer\"}}}}}]";
    static final String CITY =
            "{\"type\": \"json_schema\", \"json_schema\": {\"name\": \"city\", \"schema\": {\"type\": \"object\","
                    + " \"properties\": {\"city\": {\"enum\": [\"Ottawa\", \"Oslo\"]}}, \"required\": [\"city\"],"
                    + " \"additionalProperties\": false}}}";
    static final Pattern ACTIVE =
            Pattern.compile("^draftd_engine_active_requests\\{.*\\} (\\S+)$", Pattern.MULTILINE);
    static final HttpClient CLIENT = HttpClient.newHttpClient();
    static String real;
    static String talker;

    public static void main(String[] arguments) {
        real = arguments[0];
        talker = arguments[1];
        check("plain", Jdk::plain);
        check("stream", Jdk::stream);
        check("schema", Jdk::schema);
        check("tools", Jdk::tools);
        check("abort", Jdk::abort);
        check("resume", Jdk::resume);
        System.exit(0); // its threads would wait for a stream that was left
    }

    static void check(String name, Callable<String> run) {
        boolean ok = true;
        String detail;
        try {
            detail = run.call();
        } catch (Exception | AssertionError error) {
            ok = false;
            detail = error.toString();
        }
        System.out.println("{\"name\": \"" + name + "\", \"ok\": " + ok + ", \"detail\": " + quoted(detail) + "}");
    }

    static String quoted(String text) {
        return "\"" + text.replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", "\\n") + "\"";
    }

    static void expect(boolean ok, String found) {
        if (!ok) {
            throw new AssertionError("got " + found);
        }
    }

    static HttpRequest request(String url, String body) {
        return HttpRequest.newBuilder(URI.create(url))
                .timeout(Duration.ofSeconds(60))
                .header("Content-Type", "application/json")
                .POST(BodyPublishers.ofString(body))
                .build();
    }

    static String post(String url, String body) throws Exception {
        HttpResponse<String> response = CLIENT.send(request(url, body), BodyHandlers.ofString());
        expect(response.statusCode() == 200, response.statusCode() + " " + response.body());
        return response.body();
    }

    static String chat(String model, String text, int most, String more) {
        return "{\"model\": \"" + model + "\", \"messages\": [{\"role\": \"user\", \"content\": \"" + text
                + "\"}], \"max_tokens\": " + most + more + "}";
    }

    static String plain() throws Exception {
        String body = chat("SmolLM2-135M-Instruct", "What is the capital of Canada?", 24, "");
        String text = post(real + "/v1/chat/completions", body);
        expect(text.contains("Ottawa"), text);
        return "";
    }

    static String stream() throws Exception {
        String body = chat("SmolLM2-135M-Instruct", "What is the capital of Canada?", 24, ", \"stream\": true");
        HttpResponse<Stream<String>> response =
                CLIENT.send(request(real + "/v1/chat/completions", body), BodyHandlers.ofLines());
        List<String> lines = new ArrayList<>(response.body().filter(line -> !line.isEmpty()).toList());
        expect(lines.remove(lines.size() - 1).equals("data: [DONE]"), lines.toString());
        expect(lines.size() > 3 && lines.stream().allMatch(line -> line.startsWith("data: {")), lines.toString());
        return response.version().toString();
    }

    static String schema() throws Exception {
        String body = chat("SmolLM2-135M-Instruct", "Name a capital.", 64, ", \"response_format\": " + CITY);
        String text = post(real + "/v1/chat/completions", body);
        expect(text.contains("\\\"Ottawa\\\"") || text.contains("\\\"Oslo\\\""), text);
        return "";
    }

    static String tools() throws Exception {
        String url = talker + "/v1/chat/completions";
        String text = post(url, chat("scripted", CALL, 200, ", \"tools\": " + TOOLS));
        Matcher calls = Pattern.compile("\"tool_calls\": ?(\\[.*?\\}\\])").matcher(text);
        expect(calls.find(), text);
        Matcher ids = Pattern.compile("\"id\": ?\"([^\"]+)\"").matcher(calls.group(1));
        expect(ids.find(), text);
        String messages =
                "[{\"role\": \"user\", \"content\": \"" + CALL + "\"}, {\"role\": \"assistant\", \"content\": null,"
                        + " \"tool_calls\": " + calls.group(1) + "}, {\"role\": \"tool\", \"content\": \"5\","
                        + " \"tool_call_id\": \"" + ids.group(1) + "\"}]";
        text = post(url, "{\"model\": \"scripted\", \"messages\": " + messages + ", \"tools\": " + TOOLS + "}");
        expect(text.contains("\"done: 5\""), text);
        return "";
    }

    static double activeRequests() throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(talker + "/metrics")).build();
        Matcher found = ACTIVE.matcher(CLIENT.send(request, BodyHandlers.ofString()).body());
        expect(found.find(), "/metrics without draftd_engine_active_requests");
        return Double.parseDouble(found.group(1));
    }

    static String abort() throws Exception {
        String body = chat("scripted", "COUNT 4000", 4096, ", \"stream\": true");
        InputStream stream =
                CLIENT.send(request(talker + "/v1/chat/completions", body), BodyHandlers.ofInputStream()).body();
        stream.read(new byte[400]);
        expect(activeRequests() == 1, "no request that runs");
        stream.close();
        long began = System.nanoTime();
        while (activeRequests() > 0) {
            expect(System.nanoTime() - began < 10_000_000_000L, "a request that runs on after the abort");
            Thread.sleep(50);
        }
        return String.format(Locale.ROOT, "idle after %.2f s", (System.nanoTime() - began) / 1e9);
    }

    static String resume() throws Exception {
        String text = post(talker + "/v1/responses", "{\"model\": \"scripted\", \"input\": \"SAY apples and pears\"}");
        Matcher id = Pattern.compile("\"id\": ?\"(resp_[^\"]+)\"").matcher(text);
        expect(id.find(), text);
        String second = "{\"model\": \"scripted\", \"input\": \"RECALL it\", \"previous_response_id\": \"";
        text = post(talker + "/v1/responses", second + id.group(1) + "\"}");
        expect(text.contains("\"apples and pears\""), text);
        return "";
    }
}
