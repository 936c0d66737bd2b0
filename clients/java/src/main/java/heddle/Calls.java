package heddle;

import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.TlsChannelCredentials;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.hyperledger.fabric.client.Contract;
import org.hyperledger.fabric.client.Gateway;
import org.hyperledger.fabric.client.Hash;
import org.hyperledger.fabric.client.identity.Identities;
import org.hyperledger.fabric.client.identity.Signers;
import org.hyperledger.fabric.client.identity.X509Identity;

/** Makes many calls on one connection to a Heddle network of its own, and fails when one of them is lost. */
public final class Calls {
  private static final int AT_ONCE = 64;

  private Calls() {}

  public static void main(String[] arguments) throws Exception {
    long calls = Long.parseLong(System.getenv().getOrDefault("CALLS", "3000"));
    Path folder = Files.createTempDirectory("heddle-client-");
    Path config = folder.resolve("heddle.toml");
    Files.writeString(config, "log = \"warn\"\n[ports]\ngateway = 0\norderer = 0\nmetrics = 0\n");
    Path directory = folder.resolve("network");
    Process network =
        new ProcessBuilder(
                System.getenv("HEDDLE"), "up", "--dir", directory.toString(), "--config", config.toString())
            .redirectError(ProcessBuilder.Redirect.INHERIT)
            .start();
    long lost;
    try {
      BufferedReader printed = new BufferedReader(new InputStreamReader(network.getInputStream()));
      String line = printed.readLine();
      while (line != null && !line.contains("ready")) {
        line = printed.readLine();
      }
      if (line == null) {
        throw new IOException("heddle ended before it was ready");
      }
      lost = run(directory, calls);
    } finally {
      network.destroy();
      network.waitFor();
    }
    if (lost > 0) {
      System.exit(1);
    }
  }

  private static long run(Path directory, long calls) throws Exception {
    Path organization = directory.resolve("organizations/peerOrganizations/org1.example.com");
    Path roots = organization.resolve("peers/peer0.org1.example.com/tls/ca.crt");
    Path user = organization.resolve("users/User1@org1.example.com/msp");
    Matcher address =
        Pattern.compile("\"gateways\"[^]]*?\"address\"\\s*:\\s*\"([^\"]+)\"")
            .matcher(Files.readString(directory.resolve("endpoints.json")));
    if (!address.find()) {
      throw new IOException("endpoints.json names no gateway");
    }
    ManagedChannel channel =
        Grpc.newChannelBuilder(
                address.group(1), TlsChannelCredentials.newBuilder().trustManager(roots.toFile()).build())
            .overrideAuthority("peer0.org1.example.com")
            .build();
    X509Identity identity =
        new X509Identity("Org1MSP", Identities.readX509Certificate(Files.readString(only(user.resolve("signcerts")))));
    Gateway.Builder builder =
        Gateway.newInstance()
            .identity(identity)
            .signer(Signers.newPrivateKeySigner(Identities.readPrivateKey(Files.readString(only(user.resolve("keystore"))))))
            .hash(Hash.SHA256)
            .connection(channel);
    AtomicLong begun = new AtomicLong();
    AtomicLong lost = new AtomicLong();
    long begin = System.nanoTime();
    try (Gateway gateway = builder.connect()) {
      Contract contract = gateway.getNetwork("mychannel").getContract("basic");
      contract.submitTransaction("CreateAsset", "asset-java", "blue", "5", "Tomoko", "300");
      ExecutorService work = Executors.newFixedThreadPool(AT_ONCE);
      for (int index = 0; index < AT_ONCE; index++) {
        work.submit(
            () -> {
              while (begun.incrementAndGet() <= calls) {
                try {
                  contract.evaluateTransaction("ReadAsset", "asset-java");
                } catch (Exception error) {
                  if (lost.incrementAndGet() <= 3) {
                    System.err.println(error);
                  }
                }
              }
            });
      }
      work.shutdown();
      work.awaitTermination(2, TimeUnit.HOURS);
    } finally {
      channel.shutdownNow().awaitTermination(5, TimeUnit.SECONDS);
    }
    System.out.printf("java: %d calls, %d lost, %.1f s%n", calls, lost.get(), (System.nanoTime() - begin) / 1e9);
    return lost.get();
  }

  private static Path only(Path folder) throws IOException {
    try (var files = Files.list(folder)) {
      return files.findFirst().orElseThrow();
    }
  }
}
